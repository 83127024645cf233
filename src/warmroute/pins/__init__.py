"""Where conversations are: session -> backend and engine.

memory is the table that decisions read. Where several routers share their pins, shared keeps it in agreement with theirs
through a store: store asks and listens; redis (with sentinel), or cluster, holds the connections; wire, link and codec say in
which words. notes is what else routers tell each other there.
"""
