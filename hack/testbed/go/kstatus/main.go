// Command kstatus computes the status of Kubernetes objects as Flux, kpt and `kubectl wait`-like tools do: with kstatus itself.
//
// It reads a List of objects as JSON from standard input and prints a JSON array with one result per object, in its order.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type result struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kstatus:", err)
		os.Exit(1)
	}
}

func run() error {
	var list unstructured.UnstructuredList
	if err := json.NewDecoder(os.Stdin).Decode(&list); err != nil {
		return fmt.Errorf("standard input is no List of objects: %w", err)
	}
	results := make([]result, 0, len(list.Items))
	for i := range list.Items {
		computed, err := status.Compute(&list.Items[i])
		if err != nil {
			return fmt.Errorf("%s %s: %w", list.Items[i].GetKind(), list.Items[i].GetName(), err)
		}
		results = append(results, result{Status: computed.Status.String(), Message: computed.Message})
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}
