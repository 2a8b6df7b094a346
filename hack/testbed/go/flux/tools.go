//go:build tools

// Package tools pins the upstream programs that the testbed builds; nothing here is compiled.
package tools

import (
	_ "github.com/fluxcd/kustomize-controller"
	_ "github.com/fluxcd/source-controller"
)
