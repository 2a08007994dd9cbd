#!/usr/bin/env bash
# Start a throw-away Slurm on this machine: a controller and two nodes, each with 8 GPUs that are none. Needs root, no systemd.
#   slurm_up.sh FOLDER          then SLURM_CONF=FOLDER/etc/slurm.conf; slurm_down.sh FOLDER ends all that this has started
set -euo pipefail
folder=$1 host=$(hostname -s)
port=$((20000 + RANDOM % 20000))
mkdir -p "$folder"/{etc,state,log,dev,spool}
chmod 755 "$folder"

if ! munge -n </dev/null 2>/dev/null | unmunge >/dev/null 2>&1; then
  install -d -o munge -g munge -m 755 /run/munge
  runuser -u munge -- munged
  touch "$folder/own_munge"
fi
# torch's rendezvous waits for minutes for a name that does not resolve
grep -q '# tprimat-slurm$' /etc/hosts || printf '127.0.0.1 tn1 tn2 # tprimat-slurm\n' >>/etc/hosts
# gres.conf takes only character devices: these have the numbers of /dev/null
for ((i = 0; i < 8; i++)); do
  [[ -e $folder/dev/gpu$i ]] || mknod "$folder/dev/gpu$i" c 1 3
done
printf 'NodeName=tn[1-2] Name=gpu File=%s/dev/gpu[0-7]\n' "$folder" >"$folder/etc/gres.conf"
cat >"$folder/etc/slurm.conf" <<END
ClusterName=ci
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdSpoolDir=$folder/spool/%n
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmdLogFile=$folder/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
MinJobAge=600
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
GresTypes=gpu
NodeName=tn[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=16 RealMemory=2000 Gres=gpu:8 State=UNKNOWN
PartitionName=ci Nodes=ALL Default=YES MaxTime=01:00:00 State=UP
END
export SLURM_CONF=$folder/etc/slurm.conf
# setsid: they outlive the process group of this script
setsid slurmctld -c </dev/null >"$folder/log/slurmctld.out" 2>&1
for node in tn1 tn2; do
  mkdir -p "$folder/spool/$node"
  setsid slurmd -N "$node" </dev/null >"$folder/log/slurmd.$node.out" 2>&1
done
for ((t = 0; t < 1200; t++)); do
  [[ $(sinfo -h -N -o %T 2>/dev/null | grep -c '^idle$') -ne 2 ]] || exit 0
  sleep 0.25
done
sinfo -N -o '%N %T %E' || true
tail -n 20 "$folder"/log/*
exit 1
