"""What runs on a target: stage 0, leg, supervisor, and the runtime around a payload.

Standard library only, Python 3.8 and later. `wire` and `stage0` are used by the controller too; everything else it
only reads as text (`bundle`) and sends.
"""
