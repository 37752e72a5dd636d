// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins the container runtime that the cluster suite runs.
// It is built by harness/binaries.py; nothing imports it.
package tools

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
