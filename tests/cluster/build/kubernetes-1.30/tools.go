// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins the oldest control plane that is supported.
// It is built by harness/binaries.py; nothing imports it.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
