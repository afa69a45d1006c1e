package vm_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"text/template"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// webhookObjects is a pod that admits or refuses created objects, and the configuration that makes
// the API server use this pod.
var webhookObjects = template.Must(template.New("webhook").Parse(`apiVersion: v1
kind: Pod
metadata: {name: webhook, namespace: default, labels: {app: webhook}}
spec:
  nodeName: {{.Node}}
  terminationGracePeriodSeconds: 1
  containers:
    - name: tool
      image: {{.Image}}
      args: [webhook-serve]
      env:
        - {name: LAB_CANARY, value: "{{.Canary}}"}
        - {name: LAB_CERT, value: {{printf "%q" .Cert}}}
        - {name: LAB_KEY, value: {{printf "%q" .Key}}}
      readinessProbe: {tcpSocket: {port: 8443}}
---
apiVersion: v1
kind: Service
metadata: {name: webhook, namespace: default}
spec:
  selector: {app: webhook}
  ports: [{port: 443, targetPort: 8443}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: webhook}
webhooks:
  - name: webhook.kubeveil.test
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Fail
    timeoutSeconds: 20
    clientConfig: {service: {name: webhook, namespace: default}, caBundle: {{.Bundle}}}
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
`))

// asksWebhook proves that the API server reaches a service whose backend is a pod on another
// machine: an object that the pod refuses, with the canary in its reason, is refused.
func asksWebhook(ctx context.Context, t *testing.T, c *vm.Cluster, node *vm.Machine) {
	ca, key, err := cert.GenerateSelfSignedCertKey("webhook.default.svc", nil, nil)
	errtest.Must(t, err)
	var objects bytes.Buffer
	err = webhookObjects.Execute(&objects,
		map[string]any{"Node": node.Name, "Image": vm.ToolImage, "Canary": c.Lab.Canary,
			"Cert": string(ca), "Key": string(key),
			"Bundle": base64.StdEncoding.EncodeToString(ca)})
	errtest.Must(t, err)

	errtest.Must(t, c.Apply(ctx, objects.Bytes()))
	errtest.Must(t, errtest.Of(c.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/webhook",
		"--timeout=300s")))

	// The API server and the program that translates the endpoint read the configuration at
	// different times.
	err = lab.Until(ctx, time.Minute, func() error {
		err := c.Apply(ctx, []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: bad, "+
			"namespace: default, labels: {refuse: because}}}"))
		if err == nil || !strings.Contains(err.Error(), "refused by a pod: because "+c.Lab.Canary) {
			return fmt.Errorf("creating what the pod refuses: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}

	if err := c.Apply(ctx, []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: good, "+
		"namespace: default}}")); err != nil {
		t.Error(err)
	}
	if _, err := c.Kubectl(ctx, "delete", "validatingwebhookconfiguration", "webhook"); err != nil {
		t.Error(err)
	}
}

// asksAPI proves that pods resolve the service kubernetes with the cluster's DNS and reach the API
// server through the service. The DNS server may still be starting.
func asksAPI(ctx context.Context, t *testing.T, c *vm.Cluster, pods ...string) {
	for _, pod := range pods {
		err := lab.Until(ctx, 3*time.Minute, func() error {
			out, err := c.Kubectl(ctx, "exec", pod, "--", "/veil-tools", "https-get", "--url",
				"https://kubernetes.default.svc/version", "--timeout", "30s")
			if err == nil && !strings.Contains(string(out), "gitVersion") {
				err = fmt.Errorf("it answers %s", out)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", pod, err)
		}
	}
}
