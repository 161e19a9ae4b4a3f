"""The errors that Fourleaf raises for faults of its users.

    FourleafError
    ├── RequestError              a request that cannot be honoured (HTTP 400); names the field in `param`
    │   ├── ModelNotFoundError    a model that is not served here (HTTP 404)
    │   └── ContextLengthError    prompt and answer do not fit the model's context
    ├── CheckpointError           a checkpoint that is missing, truncated or mis-shaped
    ├── ConfigError               a model or training setting outside its limits
    ├── NumericError              logits that are no numbers, as damaged weights give
    └── LabelError                a task example whose answer breaks the labelling rules

Our own faults are assertions, never one of these.
"""


class FourleafError(Exception):
    """Root of every error raised on purpose."""


class RequestError(FourleafError):
    """A request that cannot be honoured. `param` names the field, `code` is OpenAI's machine-readable reason."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class ModelNotFoundError(RequestError):
    """The request names a model that is not served here."""


class ContextLengthError(RequestError):
    """Prompt and requested answer exceed the model's context. `prompt_tokens` and `max_prompt_tokens`, where the prompt
    alone does: how long it is, and how long it may be."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        prompt_tokens: int | None = None,
        max_prompt_tokens: int | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.prompt_tokens, self.max_prompt_tokens = prompt_tokens, max_prompt_tokens


class CheckpointError(FourleafError):
    """A checkpoint that is missing, truncated or mis-shaped."""


class ConfigError(FourleafError):
    """A model or training setting outside its limits."""


class NumericError(FourleafError):
    """Logits that are no numbers, as damaged weights give. It ends the request that met them, and no other."""


class LabelError(FourleafError):
    """A task example whose answer breaks the labelling rules."""
