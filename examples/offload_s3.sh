#!/bin/sh
# Keeps prefixes in host memory, on a disk, and in a bucket that all replicas read:
#   MODEL=ibm-granite/granite-4.0-h-small OBJECTS=s3://bucket/prefix examples/offload_s3.sh
# The keys come from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION. For MinIO and
# others set AWS_ENDPOINT_URL. Read SECURITY.md before engines share a bucket.
HYBRID_BLOCKS=natural exec vllm serve "${MODEL:?which model}" --kv-transfer-config '{
  "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
  "kv_connector_extra_config": {
    "spec_name": "HybridOffloadingSpec", "spec_module_path": "hybrid_blocks.offload",
    "host": "'"${HOST:-64GiB}"'", "disk": "'"${DISK:-/var/cache/hybrid_blocks:500GiB}"'",
    "objects": "'"${OBJECTS:?such as s3://bucket/prefix}"'"}}' "$@"
