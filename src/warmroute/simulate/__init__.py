"""`warmroute simulate`: what each way of placing requests makes of a workload, decided by the code that serves."""
