"""Files through Hadoop's FileSystem: the job's files may be on a disk, in HDFS or in an object store."""

from typing import Any

from pyspark.sql import SparkSession


class Files:
    """The file system of `root`, a directory or a URI. All paths are text, relative to it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        jsc: Any = spark._jsc
        configuration = jsc.hadoopConfiguration()
        self._system = self._path(root).getFileSystem(configuration)

    def exists(self, path: str) -> bool:
        """Whether the file or directory exists."""
        return bool(self._system.exists(self._path(path)))

    def names(self, path: str) -> list[str]:
        """The entries of a directory, sorted; none if it does not exist."""
        if not self.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(self._path(path)))

    def glob(self, pattern: str) -> list[str]:
        """Paths that match, sorted."""
        return [path for path, _ in self.sizes(pattern)]

    def sizes(self, pattern: str) -> list[tuple[str, int]]:
        """Paths that match and their bytes, sorted."""
        found = self._system.globStatus(self._path(pattern))
        return sorted((str(status.getPath().toString()), int(status.getLen())) for status in found or ())

    def delete(self, path: str) -> None:
        """Remove a file, or a directory with its contents, if it exists."""
        self._system.delete(self._path(path), True)

    def rename(self, source: str, target: str) -> None:
        """Move a file; creates the target's directory.

        Raises:
            OSError: the target exists, or the file system refuses.
        """
        to = self._path(target)
        self._system.mkdirs(to.getParent())
        if self._system.exists(to) or not self._system.rename(self._path(source), to):
            raise OSError(f"can't rename {source} to {target}")

    def read(self, path: str) -> str:
        """The text of a file."""
        stream = self._system.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Write a file with all its text, or none."""
        directory, _, name = path.rpartition("/")
        part = f"{directory}/.{name}.part"
        stream = self._system.create(self._path(part), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        self.rename(part, path)
