//go:build tools

// Package tools pins the upstream program that the testbed builds; nothing here is compiled.
package tools

import _ "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"
