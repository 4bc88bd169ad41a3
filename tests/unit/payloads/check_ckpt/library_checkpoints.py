"""Train tiny models with the real libraries and let each save as its users do: `python -m ... FOLDER`.

A program of its own: importing all of them takes seconds, and leaves hundreds of megabytes behind.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

# Nothing is fetched, reported or asked for, and what is saved is what the processor computed.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", CUDA_VISIBLE_DEVICES="")

import lightning
import peft
import torch
import transformers
from accelerate import Accelerator
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import save_model

WORDS, WIDTH, LENGTH = 200, 64, 16


class Text(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Be a text of random words, of which a third never occur."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.randint(0, WORDS * 2 // 3, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


def gpt2() -> transformers.PreTrainedModel:
    """Make a model whose head is its embedding, with biases and with normalisations."""
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> transformers.PreTrainedModel:
    """Make a model whose head is its own, without biases."""
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config)


def adapted() -> peft.PeftModel:
    """Wrap a model in low-rank adapters."""
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(llama(), config)


def size_of(model: torch.nn.Module) -> int:
    """Count what is to be counted: floating-point elements that are saved, tied ones once."""
    saved = {each.data_ptr(): each for each in model.state_dict().values() if each.is_floating_point()}
    return sum(each.numel() for each in saved.values())


def trainable(model: torch.nn.Module) -> int:
    """Count what an adapter adds."""
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


def train(model: torch.nn.Module, folder: Path, **more: object) -> None:
    """Let the Trainer of transformers train, with a checkpoint after every second step."""
    options = transformers.TrainingArguments(
        str(folder),
        max_steps=6,
        save_steps=2,
        per_device_train_batch_size=4,
        logging_steps=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **more,
    )
    transformers.Trainer(model=model, args=options, train_dataset=Text()).train()


def with_torch(folder: Path) -> dict[str, int]:
    """Save what most scripts save."""
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for step in range(1, 7):
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).pow(2).mean().backward()
        optimizer.step()
        schedule.step()
        if step % 2 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            kept = {"scheduler": schedule.state_dict(), "rng": torch.get_rng_state(), "epoch": 0}
            torch.save({**state, **kept}, folder / f"step_{step}.pt")
    return {"": size_of(model)}


def with_safetensors(folder: Path) -> dict[str, int]:
    """Save a model with tied weights."""
    model = gpt2()
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return {"": size_of(model)}


def with_accelerate(folder: Path) -> dict[str, int]:
    """Save the state after some steps, in both of its formats."""
    accelerator = Accelerator(cpu=True)
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    loader = torch.utils.data.DataLoader(Text(), batch_size=8, shuffle=True)
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    accelerator.save_state(str(folder / "safe" / "step_4"))
    accelerator.save_state(str(folder / "pickled" / "step_4"), safe_serialization=False)
    return {"safe": size_of(model), "pickled": size_of(model)}


def with_trainer(folder: Path) -> dict[str, int]:
    """Save checkpoints as the Trainer does.

    Of a whole model, of one that computes in bfloat16 and of one that is in bfloat16, of weights alone, of adapters.
    """
    models = {
        "whole": gpt2(),
        "mixed": llama(),
        "bfloat16": llama().bfloat16(),
        "weights": gpt2(),
        "adapter": adapted(),
    }
    options: dict[str, dict[str, object]] = {
        "mixed": {"bf16": True, "optim": "adafactor"},
        "weights": {"save_only_model": True, "optim": "sgd"},
    }
    for name, model in models.items():
        train(model, folder / name, **options.get(name, {}))
    return {**{name: size_of(model) for name, model in models.items()}, "adapter": trainable(models["adapter"])}


def with_transformers(folder: Path) -> dict[str, int]:
    """Save a model in shards, and one in half precision."""
    models = {"sharded": llama(), "half": gpt2().half()}
    models["sharded"].save_pretrained(folder / "sharded", max_shard_size="100KB")
    models["half"].save_pretrained(folder / "half")
    return {name: size_of(model) for name, model in models.items()}


class Lit(lightning.LightningModule):  # type: ignore[misc]
    """Be a model in the manner of Lightning."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 8))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Compute the loss."""
        loss: torch.Tensor = self.net(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> object:
        """Choose an optimizer and a schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def with_lightning(folder: Path) -> dict[str, int]:
    """Save every second step, and the last."""
    keeper = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=2, save_top_k=-1, save_last=True)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(24, WIDTH)), batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=[keeper],
        logger=False,
        accelerator="cpu",
        devices=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    model = Lit()
    trainer.fit(model, loader)
    return {"": size_of(model)}


def with_peft(folder: Path) -> dict[str, int]:
    """Save an adapter before its first step and after some."""
    model = adapted()
    model.save_pretrained(str(folder / "checkpoint-0"))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    for batch in torch.utils.data.DataLoader(Text(), batch_size=8):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    model.save_pretrained(str(folder / "checkpoint-4"))
    return {"": trainable(model)}


MAKERS = {
    "torch": with_torch,
    "safetensors": with_safetensors,
    "accelerate": with_accelerate,
    "trainer": with_trainer,
    "transformers": with_transformers,
    "lightning": with_lightning,
    "peft": with_peft,
}


def main(root: Path) -> None:
    """Make a folder for each library, and write down how many parameters each model has."""
    torch.set_num_threads(1)
    sizes = {}
    for name, make in MAKERS.items():
        torch.manual_seed(0)
        folder = root / name
        folder.mkdir(parents=True)
        sizes.update({str(Path(name, part)): size for part, size in make(folder).items()})
    (root / "sizes.json").write_text(json.dumps(sizes), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
