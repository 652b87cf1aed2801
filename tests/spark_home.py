"""A home of Spark's in which a cluster within one machine may write, beside the installed one."""

from __future__ import annotations

from pathlib import Path


def spark_home(folder: Path) -> Path:
    """For `SPARK_HOME`: the installed PySpark by links. `local-cluster` works in its home, whatever it is told."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    home = folder / "spark-home"
    home.mkdir(exist_ok=True)
    for name in ("bin", "jars", "python", "sbin", "data"):
        if (installed / name).exists() and not (home / name).exists():
            (home / name).symlink_to(installed / name)
    return home
