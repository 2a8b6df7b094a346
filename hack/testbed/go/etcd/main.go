// The etcd server, unmodified: upstream publishes its main package in a module that cannot be
// required (replace directives), so the five lines that start it stand here.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
