"""The same work on other job queues, each in its own environment: `make bench-peers`.

Every peer has a folder: `peer.toml` says how its processes are started and with which settings, `adapter.*` how jobs
come into it. `driver/` is the small part that runs inside a peer's environment, the rest runs in Timeball's.
"""
