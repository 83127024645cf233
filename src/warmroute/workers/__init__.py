"""Several processes on one port: a supervisor that knows and shows everything, and workers that move the bytes.

supervisor is the router that people talk to: it checks backends, reads their metrics, counts, tells, reloads and stops; crew
starts the workers and replaces those that die; intake takes what they tell. worker is the data path in a process of its own:
replica is its copy of the backends, voice what it tells. rows is the memory that all of them share, for what a decision must
know of the others at once; messages go over a socket pair each. valkey is a store for pins where no other one is given.
"""
