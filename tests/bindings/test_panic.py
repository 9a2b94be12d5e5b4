"""State that a panic in the core leaves behind, seen with a build that can be made to panic."""

from debug_builds import debug_build
from hybrid_blocks import _core
from process import printed_by_python

SCRIPT = """
import importlib.util, sys

spec = importlib.util.spec_from_file_location("hybrid_blocks._core", sys.argv[1])
core = sys.modules["hybrid_blocks._core"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
from hybrid_blocks import BlockManager, GroupSpec, block_hasher
from hybrid_blocks.errors import IntegrityError

def new_manager():
    return BlockManager([GroupSpec("full", 4)], block_hasher("sha256", 4), num_blocks=8)

def message(call):
    try:
        call()
    except IntegrityError as error:
        return str(error)

manager = new_manager()
print(message(manager._panic))
for call in (manager.check_integrity, manager.tick, lambda: manager.match_prefix(0)):
    print(message(call))
new_manager().check_integrity()
"""


def test_a_panic_is_an_exception_of_ours_and_the_manager_says_so_ever_after() -> None:
    is_able = hasattr(_core.BlockManager, "_panic")
    binary = _core.__file__ if is_able else str(debug_build("lib_core.so"))
    first, *later = printed_by_python("-c", SCRIPT, binary).splitlines()
    assert first == "the core panicked: asked to; make a new one"
    assert len(later) == 3
    assert all("earlier call panicked" in line and "make a new one" in line for line in later)
