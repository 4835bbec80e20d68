"""One file per image container: `read_header` walks it without decoding, `bare` leaves its metadata out.

`bare` gives Pillow a file with the same pixels and nothing else to interpret: no EXIF, no text, no
profiles, no further frames. Both raise InvalidImage or UnsupportedContent and take linear time.
"""
