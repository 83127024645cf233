"""Settings of the unit tests: properties have no deadline, since a busy machine may stop for longer than one allows."""

from hypothesis import HealthCheck, settings

settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("unit")
