"""Files of tables in memory: of given bytes, and workbooks whose members a test may replace."""

import io
import zipfile

import openpyxl

from onebert_store.tables.file import File


def file(name, content, sheet=None):
    content = content.encode() if isinstance(content, str) else content
    return File(name, lambda: io.BufferedReader(io.BytesIO(content)), sheet)


def book(**sheets):
    """A workbook's bytes; the first sheet is the member `xl/worksheets/sheet1.xml`."""
    made, out = openpyxl.Workbook(), io.BytesIO()
    made.remove(made.active)
    for name, rows in sheets.items():
        sheet = made.create_sheet(name)
        for row in rows:
            sheet.append(row)
    made.save(out)
    return out.getvalue()


def replaced(content, member, data):
    """A workbook with another member in the place of one, or with one more."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name, member_content in ({name: old.read(name) for name in old.namelist()} | {member: data}).items():
            new.writestr(name, member_content)
    return out.getvalue()
