"""The recorded embeddings are those of transformers' configuration classes."""

import embedding_defaults


def test_the_record_is_what_the_classes_say() -> None:
    written = embedding_defaults.RECORD.read_text()
    assert written == embedding_defaults.text(), "run python tests/plan/embedding_defaults.py"
