"""Serving: the dashboard of training runs behind ``heedful watch``, and the service of one model.

Of the dashboard:

    runs              training runs in the folders to watch, read from their logs
    server            its local HTTP server; it only reads
    run_attention     attention views of a run's saved model, on demand

Of the service, in the order of a request:

    run               the process: socket, signals, end
    app               the application, and what is checked before its routes
    openai_routes     completions, chat completions, embeddings, models
    task_routes       ``/predict``, the Hub's task shapes, ``/embed``, ``/rerank``
    attention_routes  ``/v1/attention``
    requests          fields, inputs and options of requests
    admission         limits, what waits, errors as clients get them
    generation        questions and their answers
    vectors           vectors of texts
    service           the model and its thread: slots, batches, cancellation
    answer_text       tokens of an answer as text, without stop strings
    attention         the views of ``heedful inspect`` for the service's model
    responses         JSON, server-sent events, clients that go
    metrics           Prometheus
    examples          inputs to try, for the page

The dashboard imports torch with the first attention view: it starts at once, also while trainings run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.serving.admission import ServiceLimits
    from heedful.serving.app import create_app
    from heedful.serving.service import Service

_HOMES = {"Service": "service", "ServiceLimits": "admission", "create_app": "app"}

__all__ = ["Service", "ServiceLimits", "create_app"]


if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"heedful.serving.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
