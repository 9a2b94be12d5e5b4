"""The ``vllm`` command on a null card; its engine core imports this file too."""

import _test_folders  # noqa: F401
import null_card

null_card.pose()

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    main()
