"""What passed, failed and was skipped: of check.py's stages and of engines.py's suites."""
import sys

import kernels


class Tally:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, [], []
        self.stages = []
        self.executed = kernels.Executed()

    def close(self):
        """The last lines, and the end of the program."""
        for title in self.skipped:
            print(f"skipped: {title}")
        for title in self.failed:
            print(f"failed: {title}")
        print(f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped", flush=True)
        sys.exit(1 if self.failed else 0)
