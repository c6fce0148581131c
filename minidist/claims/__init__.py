"""What a paper promised next to what was counted: claims, tables, files."""
