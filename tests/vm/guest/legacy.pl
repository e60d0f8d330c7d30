# A stand-in for the legacy daemon of one site, for hosts without Python: lock, inotify, one job after the other.
# A request's job is its script, run by bash; the request is removed when that has ended.
use strict;
use warnings;
use Socket;

my ($init, $add, $close_write) = (294, 254, 0x8);    # of x86-64
my $rundir = $ARGV[-1];
my $lock   = "$rundir/.base_runner_lockfile";
my $over   = 0;
$SIG{TERM} = sub { $over = 1 };
umask 0002;

if (open my $held, '<', $lock) {
    my $pid = <$held>;
    die "held by $pid\n" if defined $pid && ($pid > 0) && (kill(0, $pid) || $!{EPERM});
}
open my $file, '>', $lock or die "$lock: $!\n";
print $file $$;
close $file;

my $events = syscall $init, 0;
syscall($add, $events, "$rundir\0", $close_write) >= 0 or die "inotify: $!\n";
open my $in, '<&=', $events or die;
socket my $notify, PF_UNIX, SOCK_DGRAM, 0 or die;
send $notify, "READY=1", 0, sockaddr_un($ENV{NOTIFY_SOCKET}) or die "notify: $!\n";

until ($over) {
    my $ready = '';
    vec($ready, $events, 1) = 1;
    next if select($ready, undef, undef, 0.2) <= 0;
    sysread $in, my $data, 65536;
    while (length $data) {
        my ($watch, $mask, $cookie, $length) = unpack 'iIII', $data;
        my ($name) = unpack 'Z*', substr $data, 16, $length;
        $data = substr $data, 16 + $length;
        next unless $name =~ /\.run$/ && -f "$rundir/$name";
        open my $request, '<', "$rundir/$name" or next;
        my ($home, $mission, $log, $script, @arguments) = split ' ', <$request>;
        system "cd $mission && RUNNER_JOB_ID=legacy exec bash /opt/legacy/$script @arguments >>$log 2>&1";
        unlink "$rundir/$name";
    }
}
unlink $lock;
