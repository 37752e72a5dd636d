# SPDX-License-Identifier: Apache-2.0
"""Properties are judged by what they find, not by how long a shared machine takes for an example."""

from hypothesis import HealthCheck, settings

settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")
