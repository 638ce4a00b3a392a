"""Questions about speed, a file each. `make bench` asks them all, `make bench ARGS=drain` one."""
