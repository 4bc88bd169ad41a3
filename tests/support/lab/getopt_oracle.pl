# Holds the stand-in's option parser to the real Getopt::Long: prints every difference found.
#
#   perl -T getopt_oracle.pl PCT SEED COUNT
use strict;
use warnings;
use Getopt::Long ();

my ($pct, $seed, $count) = map { /\A(.*)\z/s } @ARGV;
require $pct;
srand $seed;
Getopt::Long::Configure('prefix_pattern=(--|-)');
my @warnings;
local $SIG{__WARN__} = sub { push @warnings, @_ };

my @pool = (
    '-', '--', '-v', '--vmid', '-k', '--keep-env', '-keep-env', '-K', '--KEEP=0', '--keep-env=', '-v=', '-v=1', '-e',
    '--extra-args', '--extra-args=x', 'a', 'b', '', '0', '-x', '--nope=1', '-V', '--v', '-ke', '-=', '--=', '---', '---v',
    '-=v', "-\n", "-v\nx", '-snap', '-s', '-se', "\n",
);
my %takes = (
    'keep-env'   => 'maybe a value',
    'snapshot'   => 'maybe a value',
    'vmid'       => 'a value',
    'extra-args' => 'a value',
    'search'     => 'a value',
);
for (1 .. $count) {
    my @words = map { $pool[rand @pool] } 1 .. rand 7;
    my (@rest, %given) = @words;
    @warnings = ();
    Getopt::Long::GetOptionsFromArray(\@rest, \%given, map { $_ . ($takes{$_} eq 'a value' ? '=s' : ':s') } sort keys %takes);
    my $theirs = describe(\%given, \@rest, @warnings);
    my $ours = describe(main::options(\%takes, @words));
    print 'words ', join(' ', map { "[$_]" } @words), "\n  Getopt::Long: $theirs\n  stand-in:     $ours\n" if $theirs ne $ours;
}

sub describe {
    my ($given, $rest, @wrong) = @_;
    return join '|', (map { "$_=$given->{$_}" } sort keys %$given), 'rest', @$rest, 'wrong', @wrong;
}
