"""What a paper promised beside what was counted: claims, tables, files."""
