// SPDX-License-Identifier: Apache-2.0

// Speaks as kubelet does, by the code that kubelet itself is built with: a client of the device plugin, and a server of
// what the plugin asks kubelet. capture.py records what goes over its sockets. Recorded last with k8s.io/kubelet 0.36.3
// and gRPC for Go 1.79.3.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	resources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

type kubelet struct {
	plugin.UnimplementedRegistrationServer
	resources.UnimplementedPodResourcesListerServer
}

func (kubelet) Register(_ context.Context, r *plugin.RegisterRequest) (*plugin.Empty, error) {
	fmt.Println("registered", r)
	return &plugin.Empty{}, nil
}

func numa(id int64) *resources.TopologyInfo {
	return &resources.TopologyInfo{Nodes: []*resources.NUMANode{{ID: id}}}
}

func (kubelet) List(context.Context, *resources.ListPodResourcesRequest) (*resources.ListPodResourcesResponse, error) {
	return &resources.ListPodResourcesResponse{PodResources: []*resources.PodResources{
		{Name: "plain", Namespace: "kube-system", Containers: []*resources.ContainerResources{{
			Name: "dns", CpuIds: []int64{2, 3},
			Memory: []*resources.ContainerMemory{{MemoryType: "memory", Size: 1 << 30, Topology: numa(0)}},
		}}},
		{Name: "train-x7k2p", Namespace: "team", Containers: []*resources.ContainerResources{
			{Name: "gpu-sidecar"},
			{Name: "train", Devices: []*resources.ContainerDevices{
				{ResourceName: "slicekeeper.io/seat", DeviceIds: []string{"seat-0003"}},
			}},
		}},
		{Name: "whole", Namespace: "other", Containers: []*resources.ContainerResources{{
			Name: "c", Devices: []*resources.ContainerDevices{
				{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-8f6e1a52-3b0c-4d9e-a1f7-5c2d90e4b6a8"}, Topology: numa(1)},
			},
			DynamicResources: []*resources.DynamicResource{{ClaimName: "claim", ClaimNamespace: "other",
				ClaimResources: []*resources.ClaimResource{{DriverName: "gpu.example", PoolName: "node-1", DeviceName: "d0",
					CdiDevices: []*resources.CDIDevice{{Name: "gpu.example/d=0"}}}}}},
		}}},
	}}, nil
}

func (kubelet) GetAllocatableResources(context.Context, *resources.AllocatableResourcesRequest) (*resources.AllocatableResourcesResponse, error) {
	return &resources.AllocatableResourcesResponse{
		CpuIds: []int64{0, 1, 2, 3},
		Memory: []*resources.ContainerMemory{{MemoryType: "memory", Size: 8 << 30, Topology: numa(0)}},
		Devices: []*resources.ContainerDevices{
			{ResourceName: "slicekeeper.io/seat", DeviceIds: []string{"seat-0000", "seat-0003"}},
			{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-11111111-3b0c-4d9e-a1f7-5c2d90e4b6a8::0"}, Topology: numa(0)},
			{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-11111111-3b0c-4d9e-a1f7-5c2d90e4b6a8::1"}, Topology: numa(0)},
		},
	}, nil
}

func serve(path string) {
	os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	plugin.RegisterRegistrationServer(server, kubelet{})
	resources.RegisterPodResourcesListerServer(server, kubelet{})
	go server.Serve(listener)
	time.Sleep(time.Hour)
}

func ask(path, what string) {
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer connection.Close()
	client := plugin.NewDevicePluginClient(connection)
	ctx, end := context.WithTimeout(context.Background(), 20*time.Second)
	defer end()
	var answer any
	switch what {
	case "GetDevicePluginOptions":
		answer, err = client.GetDevicePluginOptions(ctx, &plugin.Empty{})
	case "Allocate":
		answer, err = client.Allocate(ctx, &plugin.AllocateRequest{ContainerRequests: []*plugin.ContainerAllocateRequest{{DevicesIds: []string{"seat-0003"}}}})
	case "PreStartContainer":
		answer, err = client.PreStartContainer(ctx, &plugin.PreStartContainerRequest{DevicesIds: []string{"seat-0003"}})
	case "ListAndWatch":
		var stream grpc.ServerStreamingClient[plugin.ListAndWatchResponse]
		if stream, err = client.ListAndWatch(ctx, &plugin.Empty{}); err == nil {
			answer, err = stream.Recv()
			time.Sleep(300 * time.Millisecond)
		}
	}
	if err != nil && err != io.EOF {
		panic(err)
	}
	fmt.Println(what, answer)
}

func main() {
	if os.Args[1] == "serve" {
		serve(os.Args[2])
	}
	ask(os.Args[2], os.Args[3])
}
