"""Metrics of a server in Prometheus' format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # buckets


class Metrics:
    """Counters, gauges and histograms of one server, in a registry of their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        make: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("heedful_requests", "Requests by route and status.", ["route", "status"], **make)
        self.seconds = Histogram(
            "heedful_request_seconds",
            "Time of a request, to the end of its answer.",
            ["route"],
            buckets=SECONDS,
            **make,
        )
        self.refusals = Counter("heedful_refusals", "Requests refused before any work, by status.", ["status"], **make)
        self.cancellations = Counter(
            "heedful_cancellations", "Answers that nobody waited for any more, by where they were.", ["where"], **make
        )
        self.failures = Counter("heedful_failures", "Answers that ended with an error of the server.", **make)
        self.prompt_tokens = Counter("heedful_prompt_tokens", "Tokens of prompts that were read.", **make)
        self.generated_tokens = Counter("heedful_generated_tokens", "Tokens that were generated.", **make)
        self.warnings = Counter("heedful_input_warnings", "Warnings about inputs, such as that one was cut.", **make)
        self.first_token = Histogram(
            "heedful_time_to_first_token_seconds", "From a request to its first token.", buckets=SECONDS, **make
        )
        self.between_tokens = Histogram(
            "heedful_time_between_tokens_seconds", "Between two tokens of an answer.", buckets=SECONDS, **make
        )
        self.batch_inputs = Histogram(
            "heedful_batch_inputs", "Inputs that were computed together.", buckets=(1, 2, 4, 8, 16, 32, 64, 128), **make
        )

    def watch(self, name: str, help: str, value: Callable[[], float]) -> None:
        """Adds a gauge whose value is computed when it is read."""
        Gauge(name, help, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
