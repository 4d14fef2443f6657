"""The version of eqsat, part of the key of everything it keeps."""

VERSION = "0.1.0"
