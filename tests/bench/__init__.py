"""What warmroute costs: end to end beside other routers (overhead), and part by part (micro)."""
