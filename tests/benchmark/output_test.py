"""What counts as torn or lost."""
import unittest

from experiment import RunFailed
from output import LINE_BYTES, TAG_BYTES, _check

COMMANDS = [(["hvdrun", "-np", "2"], {})]


class OutputTest(unittest.TestCase):
    def test_every_byte_has_to_come(self):
        _check(COMMANDS, 10 * (LINE_BYTES + TAG_BYTES), 10, TAG_BYTES, None)
        with self.assertRaisesRegex(RunFailed, "2119 bytes came, not 2120: hvdrun -np 2"):
            _check(COMMANDS, 10 * (LINE_BYTES + TAG_BYTES) - 1, 10, TAG_BYTES, None)

    def test_a_peer_may_tag_as_it_likes(self):
        _check(COMMANDS, 1, 10, None, None)

    def test_lost_torn_and_doubled_lines_are_named(self):
        for looked_at in ([9, 0, 0], [10, 1, 0], [10, 0, 1]):
            with self.assertRaisesRegex(RunFailed, "of 10 lines .* torn, .* out of order"):
                _check(COMMANDS, 2120, 10, TAG_BYTES, looked_at)
        _check(COMMANDS, 2120, 10, TAG_BYTES, [10, 0, 0])


if __name__ == "__main__":
    unittest.main()
