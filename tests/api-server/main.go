// Command api-server is a Kubernetes API server for the suite `kubernetes`: custom resources exactly as a
// cluster serves them (upstream's apiextensions server, on etcd), and the built-in kinds that the controller
// and its tests use (builtin.go), authorized by the roles that are stored in it (roles.go).
//
// A cluster has more: nothing here validates built-in kinds, runs webhooks, deletes the objects of a
// namespace, or collects what an owner left.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/trace/noop"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	extensionsoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	o := extensionsoptions.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	// These ask a cluster's own API server, and there is none besides this one.
	r := o.RecommendedOptions
	r.CoreAPI, r.Admission, r.Authentication, r.Authorization = nil, nil, nil, nil
	r.Features.EnablePriorityAndFairness = false

	flags := pflag.NewFlagSet("api-server", pflag.ExitOnError)
	o.AddFlags(flags)
	flags.AddGoFlagSet(flag.CommandLine)
	users := flags.String("users", "", "file of users, `TOKEN,NAME,UID,\"GROUP,...\"` a line")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	if err := o.Complete(); err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return err
	}
	config, authorizer, err := configuration(o, *users)
	if err != nil {
		return err
	}
	completed := config.Complete()
	completed.GenericConfig.EnableDiscovery = true
	extensions, err := completed.New(server.NewEmptyDelegate())
	if err != nil {
		return err
	}
	if err := serveBuiltin(extensions.GenericAPIServer, *r.Etcd, authorizer); err != nil {
		return err
	}
	return extensions.GenericAPIServer.PrepareRun().RunWithContext(ctx)
}

// configuration does what the options' own Config does, without a cluster to ask.
func configuration(o *extensionsoptions.CustomResourceDefinitionsServerOptions, users string) (*apiextensions.Config, *storedRoles, error) {
	r := o.RecommendedOptions
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	if err := r.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, loopback); err != nil {
		return nil, nil, err
	}
	config := &apiextensions.Config{GenericConfig: server.NewRecommendedConfig(apiextensions.Codecs)}
	generic := &config.GenericConfig.Config
	if err := o.ServerRunOptions.ApplyTo(generic); err != nil {
		return nil, nil, err
	}
	if err := r.ApplyTo(config.GenericConfig); err != nil {
		return nil, nil, err
	}
	resources := apiextensions.DefaultAPIResourceConfigSource()
	if err := o.APIEnablement.ApplyTo(generic, resources, apiextensions.Scheme); err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(generic.LoopbackClientConfig)
	if err != nil {
		return nil, nil, err
	}
	config.GenericConfig.SharedInformerFactory = informers.NewSharedInformerFactory(client, 0)
	config.ExtraConfig = apiextensions.ExtraConfig{
		CRDRESTOptionsGetter: extensionsoptions.NewCRDRESTOptionsGetter(*r.Etcd, generic.ResourceTransformers, generic.StorageObjectCountTracker),
		AuthResolverWrapper:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, generic.LoopbackClientConfig, noop.NewTracerProvider()),
	}

	definitions := describeBuiltin(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(apiextensions.Scheme, scheme.Scheme)
	generic.OpenAPIConfig = server.DefaultOpenAPIConfig(definitions, namer)
	generic.OpenAPIV3Config = server.DefaultOpenAPIV3Config(definitions, namer)
	generic.LegacyAPIGroupPrefixes = sets.NewString(server.DefaultLegacyAPIPrefix)

	tokens, err := tokenfile.NewCSV(users)
	if err != nil {
		return nil, nil, err
	}
	known := []authenticator.Request{bearertoken.New(tokens)}
	// That of the server's own requests.
	if own := generic.Authentication.Authenticator; own != nil {
		known = append(known, own)
	}
	generic.Authentication.Authenticator = group.NewAuthenticatedGroupAdder(union.New(known...))
	authorizer := &storedRoles{}
	generic.Authorization.Authorizer = authorizer
	return config, authorizer, nil
}
