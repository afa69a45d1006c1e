package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// apiServices is the path of APIService objects, which register APIs that pods serve. The case
// needs only one such object, so it does not use their client library.
const apiServices = "/apis/apiregistration.k8s.io/v1/apiservices"

// Aggregated reads an object through the API server from an API that a pod serves. The object
// contains the canary.
func Aggregated(ctx context.Context, s *session.Session) error {
	n, err := s.OwnNamespace(ctx)
	if err != nil {
		return err
	}
	p, ca, err := serveWebhook(ctx, n, "api")
	if err != nil {
		return err
	}

	group := n.Name + ".e2e.kubeveil.io"
	object, err := json.Marshal(apiService(n.Name, group, ca))
	if err != nil {
		return err
	}
	api := s.Client.Discovery().RESTClient()
	if err := api.Post().AbsPath(apiServices).SetHeader("Content-Type",
		"application/json").Body(object).Do(ctx).Error(); err != nil {
		return fmt.Errorf("register the API %s: %w", group, err)
	}

	s.Note("API on %s", p.Node)
	err = remote.Until(ctx, "an object of an API that a pod serves", session.Meeting,
		func(ctx context.Context) error {
			got, err := api.Get().AbsPath("/apis/"+group+"/v1/canary").SetHeader("Accept",
				"application/json").DoRaw(ctx)
			if err == nil && !strings.Contains(string(got), s.Canary) {
				err = fmt.Errorf("the API server returns %q: want the pod's answer", got)
			}
			return err
		})

	// Delete the API before its pod ends: no namespace can be removed while an API does not answer.
	return errors.Join(err, api.Delete().AbsPath(apiServices+"/v1."+
		group).Do(context.WithoutCancel(ctx)).Error())
}

// apiService is the APIService (apiregistration.k8s.io/v1) by which the API server forwards a group
// to the service "api".
func apiService(namespace, group string, ca []byte) map[string]any {
	return map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": metav1.ObjectMeta{Name: "v1." + group,
			Labels: map[string]string{remote.SuiteLabel: "e2e"}},
		"spec": map[string]any{
			"group": group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
			"caBundle": ca,
			"service":  map[string]any{"namespace": namespace, "name": "api", "port": webhookPort},
		},
	}
}
