"""The recorded defaults are those of the configuration classes of vLLM and transformers."""

import class_defaults
import pytest


@pytest.mark.filterwarnings("ignore")  # a class that warns has defaults all the same
def test_the_record_is_what_the_classes_say() -> None:
    written = class_defaults.RECORD.read_text()
    assert written == class_defaults.text(), "run python tests/plan/class_defaults.py"
