#!/usr/bin/env bash
# Start a throw-away Slurm on this machine: a controller, accounting in a database where slurmdbd and mariadbd are
# installed, and two nodes, each with 8 GPUs that are none. Needs root, no systemd. Several may be up at a time.
#   slurm_up.sh FOLDER          then SLURM_CONF=FOLDER/etc/slurm.conf; slurm_down.sh FOLDER ends all that this has started
set -Eeuo pipefail
folder=$1 host=$(hostname -s) slot=0
# ports and numbers of jobs that no other one has: the ports of ranks follow from these
until mkdir "/tmp/tprimat-slurm.$slot" 2>/dev/null; do slot=$((slot + 1)); done
port=$((10000 + slot * 10))
mkdir -p "$folder"/{etc,state,log,dev,spool,db}
chmod 755 "$folder"
export SLURM_CONF=$folder/etc/slurm.conf
printf '%s' "/tmp/tprimat-slurm.$slot" >"$folder/slot"
trap 'tail -n 20 "$folder"/log/* >&2' ERR

# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
  local t
  for ((t = 0; t < $1 * 5; t++)); do
    ! "${@:2}" >/dev/null 2>&1 || return 0
    sleep 0.2
  done
  return 1
}

# accounting: a database of its own, and slurmdbd before it, so that sacct is the real one.
accounting() {
  local sql=(mariadb -S "$folder/db/sock")
  chown mysql:mysql "$folder/db"
  if ! runuser -u mysql -- test -w "$folder/db"; then
    printf '%s: its database runs as the user mysql, who cannot get there. Try TMPDIR=/tmp\n' "$folder" >&2
    return 1
  fi
  # a tmpdir of its own: a database that starts removes the temporary tables of another one from the same tmpdir
  mariadb-install-db --no-defaults --user=mysql --datadir="$folder/db/data" --tmpdir="$folder/db" --skip-test-db \
    >"$folder/log/db_install.out" 2>&1
  # a throw-away database need not be on disk
  setsid runuser -u mysql -- mariadbd --no-defaults --datadir="$folder/db/data" --tmpdir="$folder/db" \
    --socket="$folder/db/sock" --pid-file="$folder/db/pid" --port=$((port + 4)) --bind-address=127.0.0.1 \
    --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0 \
    </dev/null >"$folder/log/mariadb.out" 2>&1 &
  wait_for 120 "${sql[@]}" -e 'select 1'
  "${sql[@]}" -e "create database slurm; create user slurm@'127.0.0.1' identified by 'ci';
    create user slurm@localhost identified by 'ci'; grant all on slurm.* to slurm@'127.0.0.1', slurm@localhost;"
  cat >"$folder/etc/slurmdbd.conf" <<END
AuthType=auth/munge
AuthInfo=socket=$folder/munge.sock
DbdHost=$host
DbdAddr=127.0.0.1
DbdPort=$((port + 3))
SlurmUser=root
PidFile=$folder/slurmdbd.pid
LogFile=$folder/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((port + 4))
StorageUser=slurm
StoragePass=ci
StorageLoc=slurm
END
  chmod 600 "$folder/etc/slurmdbd.conf"
  setsid slurmdbd </dev/null >"$folder/log/slurmdbd.out" 2>&1
  wait_for 120 sacctmgr -n show cluster
  sacctmgr -i add cluster ci >/dev/null
}

(umask 077 && head -c 1024 /dev/urandom >"$folder/etc/munge.key")
munged --socket="$folder/munge.sock" --key-file="$folder/etc/munge.key" --pid-file="$folder/munged.pid" \
  --seed-file="$folder/etc/munge.seed" --log-file="$folder/log/munged.log"
# shellcheck disable=SC2016 # of the inner shell
# torch's rendezvous waits for minutes for a name that does not resolve
flock /etc/hosts bash -c 'printf "127.0.0.1 tn1 tn2 # tprimat-slurm %s\n" "$1" >>/etc/hosts' hosts "$folder"
# gres.conf takes only character devices: these have the numbers of /dev/null
for ((i = 0; i < 8; i++)); do
  [[ -e $folder/dev/gpu$i ]] || mknod "$folder/dev/gpu$i" c 1 3
done
printf 'NodeName=tn[1-2] Name=gpu File=%s/dev/gpu[0-7]\n' "$folder" >"$folder/etc/gres.conf"
storage=none
if command -v slurmdbd >/dev/null && command -v mariadbd >/dev/null; then
  storage="slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((port + 3))
AccountingStoragePass=$folder/munge.sock"
fi
cat >"$folder/etc/slurm.conf" <<END
ClusterName=ci
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.sock,cred_expire=5
FirstJobId=$((slot * 500 + 1))
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdSpoolDir=$folder/spool/%n
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmdLogFile=$folder/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/$storage
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
MinJobAge=600
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=2
GresTypes=gpu
NodeName=tn[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=16 RealMemory=2000 Gres=gpu:8 State=UNKNOWN
PartitionName=ci Nodes=ALL Default=YES MaxTime=01:00:00 State=UP
PartitionName=low Nodes=ALL MaxTime=01:00:00 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=01:00:00 State=UP PriorityTier=10
END
[[ $storage == none ]] || accounting
# setsid: they outlive the process group of this script
setsid slurmctld -c </dev/null >"$folder/log/slurmctld.out" 2>&1
for node in tn1 tn2; do
  mkdir -p "$folder/spool/$node"
  setsid slurmd -N "$node" </dev/null >"$folder/log/slurmd.$node.out" 2>&1
done
# shellcheck disable=SC2016 # of the inner shell
wait_for 120 bash -c '[[ $(sinfo -h -N -p ci -o %T | grep -c "^idle$") -eq 2 ]]' && exit 0
sinfo -N -o '%N %T %E' || true
false # its trap shows the logs
