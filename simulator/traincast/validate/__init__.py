"""The use case: published measurements in, errors out, a row and a family at a time."""

from traincast.validate.report import ValidationReport, published_files, read_published, validate_rows
from traincast.validate.rows import PublishedRow
from traincast.validate.score import FamilyScore, RowScore, family_scores

__all__ = [
    "FamilyScore",
    "PublishedRow",
    "RowScore",
    "ValidationReport",
    "family_scores",
    "published_files",
    "read_published",
    "validate_rows",
]
