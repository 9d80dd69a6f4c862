"""Common part of the kvstores ``s3`` and ``gcs``: requests, lists, uploads and credentials."""
