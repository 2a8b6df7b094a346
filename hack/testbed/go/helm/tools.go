//go:build tools

// Package tools pins the upstream program that the testbed builds; nothing here is compiled.
package tools

import _ "helm.sh/helm/v4/cmd/helm"
