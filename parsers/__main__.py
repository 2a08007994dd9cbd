from tensorprimat.entry import run

raise SystemExit(run("tensorprimat.parse"))
