//go:build tools

// Package tools pins the upstream program that the testbed builds; nothing here is compiled.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
