"""A good file of a format that is changed, read and mended, again and again."""

from pathlib import Path

from tests.attacks.forging import forge
from tests.attacks.formats import FORMATS, good_files

DOCUMENTED = (ValueError, OSError)


class Place:
    """A folder with a good one of a format, to be changed and mended."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.files = good_files(name, folder)

    def outcome(self, changed: dict[str, bytes], *, forged: bool) -> str | None:
        """Return the message of a refusal after changing some files, None if there is none."""
        for file, content in changed.items():
            if forged:
                forge(self.folder, file, content)
            else:
                (self.folder / file).write_bytes(content)
        try:
            FORMATS[self.name].read(self.folder)
        except DOCUMENTED as error:
            return str(error)
        finally:
            digests = {file for file in self.files if "manifest" in file.lower()}
            for file in {*changed, *digests}:
                (self.folder / file).write_bytes(self.files[file])
        return None

    def check(self, changed: dict[str, bytes], *, forged: bool = False) -> None:
        message = self.outcome(changed, forged=forged)
        assert message is None or str(self.folder) in message
