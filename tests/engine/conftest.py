import pytest

from fourleaf.engine.engine import Engine
from fourleaf.measure.specimen import specimen


@pytest.fixture(scope="session")
def random_engine(byte_tokenizer) -> Engine:
    """A head that ends an answer now and then, and that would love to say the mask id."""
    return specimen(byte_tokenizer, 5, max_context=300, says_mask=True)
