//go:build tools

// Package tools pins the upstream programs that the testbed builds; nothing here is compiled.
package tools

import (
	_ "github.com/csi-addons/kubernetes-csi-addons/cmd/manager"
	_ "github.com/csi-addons/kubernetes-csi-addons/sidecar"
)
