// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools names the program to build, so that its module is required.
package tools

import _ "helm.sh/helm/v4/cmd/helm"
