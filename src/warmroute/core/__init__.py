"""Every decision the router makes, without I/O: imports only itself and the pure standard library."""
