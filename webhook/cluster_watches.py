# SPDX-License-Identifier: Apache-2.0
"""The watches of a worker: they keep what reviews need to know of the cluster, so that no review has to ask for it."""

from __future__ import annotations

import logging

from slicekeeper.config.settings import KubernetesSettings
from slicekeeper.errors import SettingsError
from slicekeeper.kube.client import LIMIT_RANGES, PRIORITY_CLASSES, KubeClient
from slicekeeper.kube.watch import Watch
from webhook.limit_range_watch import LimitRanges
from webhook.priority_class_watch import PriorityClasses

log = logging.getLogger(__name__)


def watches_of(classes: PriorityClasses, limit_ranges: LimitRanges, settings: KubernetesSettings) -> list[Watch]:
    """Return the watches that keep both up to date, not started yet; none without a cluster."""
    try:
        client = KubeClient(settings)
    except SettingsError:
        if settings.server:
            raise
        log.info("no cluster to watch: priority classes are those of the settings, and LimitRanges are unknown")
        return []
    return [Watch(client, PRIORITY_CLASSES, classes), Watch(client, LIMIT_RANGES, limit_ranges)]
