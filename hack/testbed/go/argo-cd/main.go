// Command argo-cd says what Argo CD would say of objects, with Argo CD's own code: how healthy they are under the customizations
// of a ConfigMap argocd-cm, and whether they differ from what git has (its ServerSideDiff). It asks no server: who calls it
// brings the answers.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/lua"
	"github.com/argoproj/gitops-engine/pkg/diff"
	"github.com/argoproj/gitops-engine/pkg/health"
	openapi "github.com/google/gnostic-models/openapiv2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/util/proto"
)

// manager is the field manager of Argo CD's application controller.
const manager = "argocd-controller"

// healthKey begins the keys of argocd-cm that hold a script; group and kind follow, with _ between them.
const healthKey = "resource.customizations.health."

type question struct {
	// Settings are the data of argocd-cm.
	Settings map[string]string `json:"settings"`
	// OpenAPI is the file that holds what the server says under /openapi/v2; only for diffs.
	OpenAPI string `json:"openapi"`
	Items   []item `json:"items"`
}

type item struct {
	Live *unstructured.Unstructured `json:"live"`
	// Desired is what git has, and Predicted what the server answers when Argo CD applies it in a dry run; only for diffs.
	Desired   *unstructured.Unstructured `json:"desired"`
	Predicted json.RawMessage            `json:"predicted"`
}

type answer struct {
	Health   string `json:"health"`
	Message  string `json:"message"`
	Modified bool   `json:"modified"`
	Is       string `json:"is"`
	Becomes  string `json:"becomes"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "argo-cd:", err)
		os.Exit(1)
	}
}

func run() error {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return fmt.Errorf("standard input is not as expected: %w", err)
	}
	parser, err := parser(asked.OpenAPI)
	if err != nil {
		return fmt.Errorf("%s: %w", asked.OpenAPI, err)
	}
	scripts := overrides(asked.Settings)
	answers := make([]answer, 0, len(asked.Items))
	for _, item := range asked.Items {
		answer, err := item.answer(scripts, parser)
		if err != nil {
			return fmt.Errorf("%s %s: %w", item.Live.GetKind(), item.Live.GetName(), err)
		}
		answers = append(answers, answer)
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

func overrides(settings map[string]string) lua.ResourceHealthOverrides {
	scripts := lua.ResourceHealthOverrides{}
	for key, script := range settings {
		if kind, is := strings.CutPrefix(key, healthKey); is {
			scripts[strings.ReplaceAll(kind, "_", "/")] = v1alpha1.ResourceOverride{HealthLua: script}
		}
	}
	return scripts
}

func parser(file string) (*managedfields.GvkParser, error) {
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	document, err := openapi.ParseDocument(content)
	if err != nil {
		return nil, err
	}
	models, err := proto.NewOpenAPIData(document)
	if err != nil {
		return nil, err
	}
	return managedfields.NewGVKParser(models, false)
}

func (item item) answer(scripts lua.ResourceHealthOverrides, parser *managedfields.GvkParser) (answer, error) {
	found, err := health.GetResourceHealth(item.Live, scripts)
	if err != nil {
		return answer{}, err
	}
	// Argo CD calls what has no health healthy as soon as it is there.
	said := answer{Health: string(health.HealthStatusHealthy)}
	if found != nil {
		said = answer{Health: string(found.Status), Message: found.Message}
	}
	if item.Desired == nil {
		return said, nil
	}
	differs, err := diff.Diff(item.Desired, item.Live.DeepCopy(),
		diff.WithServerSideDiff(true), diff.WithManager(manager), diff.WithGVKParser(parser), diff.WithServerSideDryRunner(item))
	if err != nil {
		return answer{}, err
	}
	said.Modified, said.Is, said.Becomes = differs.Modified, string(differs.NormalizedLive), string(differs.PredictedLive)
	return said, nil
}

// Run is what the server was asked before.
func (item item) Run(context.Context, *unstructured.Unstructured, string) (string, error) {
	return string(item.Predicted), nil
}
